-- The server's clock: milliseconds, and microseconds, of which tokens are made: exact in a double until the year 2255.
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

-- A token as text. Lesser numbers need no such care: Lua shows 14 digits of them, enough for milliseconds until the year 5138.
local function int(n)
  return string.format('%.0f', n)
end

