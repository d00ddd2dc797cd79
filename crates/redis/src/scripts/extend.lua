-- Extends an exclusive hold by its key alone. One key is always at one node, so this also works while its slot is moved.
-- ARGV: what its record has behind the flag, `id token kind n of ttl `, and the ttl
-- Answers 1, or 0: it takes more than that.
local record = redis.call('GET', KEYS[1])
if record and string.sub(record, 2, #ARGV[1] + 1) == ARGV[1] and string.sub(record, 1, 1) ~= '.' then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
