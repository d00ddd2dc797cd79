-- Extends many in one step: exclusive holds by their key alone, and whatever needs more by `renew`, a script for one name.
-- KEYS: the lock for each, and the fence. ARGV: for each what its record has behind the flag if it is an exclusive hold, `id token
-- kind n of ttl `; the ttl, and the attempt.
-- Answers for each what `renew` answers, or 1: it was extended.
local answers = {}
for i, record in ipairs(redis.call('MGET', unpack(KEYS, 1, #KEYS - 1))) do
  local start, ttl, attempt = unpack(ARGV, i * 3 - 2, i * 3)
  if record and string.sub(record, 2, #start + 1) == start and string.sub(record, 1, 1) ~= '.' then
    answers[i] = redis.call('PEXPIRE', KEYS[i], ttl)
  else
    local id, token = string.match(start, '^(%x+) (%d+)')
    answers[i] = renew({ KEYS[i], KEYS[#KEYS] }, { id, ttl, attempt, token })
  end
end
return answers
