-- The bound of a server: no token that it has given out, of any name, is greater.

-- For how many seconds the bound stays when the clock has passed it: so far back may the clock step.
local KEPT = 7200

-- Writes the bound, and answers by how many seconds it is ahead of the clock.
local function set_bound(key, bound)
  local ahead = math.max(0, math.ceil((bound - micros) / 1000000))
  redis.call('SET', key, int(bound), 'EX', KEPT + ahead)
  return ahead
end

