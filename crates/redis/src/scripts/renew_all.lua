-- Extends many in one step, for the same time: exclusive holds by their key alone, and whatever needs more by `renew`, a script for
-- one name. Nearly all are holds, and come here again and again: each word that is told, and each function that is looked up, counts.
-- KEYS: the lock for each, and the fence. ARGV: the ttl, and the attempt; then for each what its record has behind the flag if it is an
-- exclusive hold, `id token kind n of ttl `.
-- Answers for each what `renew` answers, or 1: it was extended.
local answers, call, find, byte, ttl, attempt = {}, redis.call, string.find, string.byte, ARGV[1], ARGV[2]
for i, record in ipairs(call('MGET', unpack(KEYS, 1, #KEYS - 1))) do
  local start = ARGV[i + 2]
  -- A hold whose flag is `.` ends by itself.
  if record and find(record, start, 2, true) == 2 and byte(record) ~= 46 then
    answers[i] = call('PEXPIRE', KEYS[i], ttl)
  else
    local id, token = string.match(start, '^(%x+) (%d+)')
    answers[i] = renew({ KEYS[i], KEYS[#KEYS] }, { id, ttl, attempt, token })
  end
end
return answers
