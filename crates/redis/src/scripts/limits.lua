-- How much work for others one script may still do: a dead entry that is removed costs 1, and one that is admitted ADMISSION. When
-- it is exhausted, the script answers `more`, and its caller calls it again: so no script blocks the server for long.
local budget, ADMISSION = 100, 2
