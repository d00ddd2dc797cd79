-- The server's clock: milliseconds, and microseconds, of which tokens are made: exact in a double until the year 2255.
local call = redis.call
local time = call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

-- A token as text. Lesser numbers need no such care: Lua shows 14 digits of them, enough for milliseconds until the year 5138.
local function int(n)
  return string.format('%.0f', n)
end

-- Remembers the greatest token that was given out. A token is never below the clock, so the last one matters only after the
-- clock stepped back. It is kept for two hours past its own value: tokens rise through every step back of up to two hours,
-- however long the lock was idle.
local function remember(upto)
  local ahead = math.ceil((upto - micros) / 1000000)
  call('SET', KEYS[3], int(upto), 'EX', ahead > 0 and 7200 + ahead or '7200')
end

-- Tells the observers of the lock that its holder, or its label, has changed.
local function notify_observers()
  call('PUBLISH', 'leasehold:name:' .. KEYS[1], '')
end

-- Lets a key live for so long at least.
local function outlive(key, ms)
  call('PEXPIRE', key, math.max(ms, call('PTTL', key)))
end

