-- Raises the fence to a number, so that tokens go on above it, unless they are above it already.
-- ARGV: the number, or 0
-- Answers a number that no token exceeds: where the fence is lost, or older than it was, the clock is above all of them.
local last, number = tonumber(redis.pcall('GET', KEYS[1])), tonumber(ARGV[1])
if not (last and last < 9e15) then last = micros - 1 end
if number > last then
  redis.call('SET', KEYS[1], int(number), 'EX', 7200 + math.max(0, math.ceil((number - micros) / 1000000)))
end
return int(math.max(last, number, micros + BLOCKS))
