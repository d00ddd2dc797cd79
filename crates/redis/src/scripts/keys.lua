-- What every script begins with: the keys of one name, what the shortest ways want to know, and the server's clock.
--
-- KEYS: 1 the lock    string. Held exclusively: the holder's entry. Held by sharers: `kind taken of`. It expires with the
--                     last of them, and `SET lock x NX PX ttl` of other tools fails meanwhile. Any other value is theirs.
--       2 {lock}:h    sorted set, who shares: ids by deadline
--       3 {lock}:f    string, the greatest token given out                         (outlives the lock by KEEP)
--       4 {lock}:q    sorted set, who waits: ids by ticket
--       5 {lock}:w    hash, who waits or shares: id -> entry
-- An entry: id token turns since attempt ttl deadline kind n of channel label, with token 0 while it waits.
-- A claim takes n of `of` permits of its kind; one exclusive or shared claim takes 1, of 1 or of very many.
-- Times are milliseconds of the server's clock; tokens are its microseconds, exact in a double until the year 2255.
local LOCK, SHARERS, FENCE, LINE, ENTRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call = redis.call

-- A token is never below the clock, so the last one matters only after the clock stepped back. It is kept for two hours
-- past its own value: tokens rise through every step back of up to two hours, however long the lock was idle.
local KEEP = 7200000

local function int(n)
  return string.format('%.0f', n)
end

-- A value of another type reads as none: see commit.
local found, time = call('MGET', LOCK, FENCE), call('TIME')
local last = tonumber(found[2]) or 0
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
-- Whether anybody waits or shares: on the shortest way nobody does.
local crowd = call('EXISTS', ENTRIES) == 1

-- Remembers the greatest token that was given out.
local function remember(upto)
  call('SET', FENCE, int(upto), 'PX', int(KEEP + math.ceil((upto - micros) / 1000)))
end

-- Tells observers.
local function stir()
  call('PUBLISH', 'leasehold:name:' .. LOCK, '')
end

