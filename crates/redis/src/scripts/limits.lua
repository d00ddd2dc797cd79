-- How much work for others one script may still do: a dead entry that is removed costs 1, and one that is admitted ADMISSION. When
-- it is spent, the script says `more`, and whoever called it calls again; so nobody keeps the server from everybody else for long.
local budget, ADMISSION = 100, 2
-- The attempt of a hold that ends by itself: it is never extended.
local CLOSED = '9007199254740991'

