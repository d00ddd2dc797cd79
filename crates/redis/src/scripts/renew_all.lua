-- Extends many in one step: exclusive holds by their key alone, and whatever needs more by `renew`, a script for one name.
-- KEYS: six for each. ARGV: for each what its record has behind the flag if it is an exclusive hold, `id token kind n of ttl `; the
-- ttl, and the attempt.
-- Answers for each what `renew` answers, or 1: it was extended.
local locks, answers = {}, {}
for i = 1, #KEYS, 6 do locks[#locks + 1] = KEYS[i] end
for i, record in ipairs(redis.call('MGET', unpack(locks))) do
  local start, ttl, attempt = unpack(ARGV, i * 3 - 2, i * 3)
  if record and string.sub(record, 2, #start + 1) == start and string.sub(record, 1, 1) ~= '.' then
    answers[i] = redis.call('PEXPIRE', locks[i], ttl)
  else
    local id, token = string.match(start, '^(%x+) (%d+)')
    answers[i] = renew({ unpack(KEYS, i * 6 - 5, i * 6) }, { id, ttl, attempt, token })
  end
end
return answers
