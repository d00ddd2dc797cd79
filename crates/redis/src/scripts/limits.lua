-- How much work for others one script may still do: a dead entry that is removed costs 1, and one that is admitted ADMISSION. When
-- it is exhausted, the script answers `more`, and its caller calls it again: so no script blocks the server for long.
local budget, ADMISSION = 100, 2

-- How many microseconds the fence may be ahead of the clock where a block of tokens is given out. One by one they never get ahead, and
-- so a fence that is lost has no tokens above the clock for longer: unless the clock stepped back, they rise all the same.
local BLOCKS = 5000
