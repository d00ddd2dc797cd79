-- Extends exclusive holds by their keys alone, for the same time. Nearly all renewals are these, and they come again and again: each word that
-- is told, and each function that is looked up, counts. One key is always at one node, so a single one can also be extended while its
-- slot is moved.
-- KEYS: the lock of each. ARGV: the ttl; then for each what its record has behind the flag, `id token kind n of ttl `.
-- Answers for each 1, or 0: it takes more than that.
local answers, call, find, byte, ttl = {}, redis.call, string.find, string.byte, ARGV[1]
for i, record in ipairs(call('MGET', unpack(KEYS))) do
  -- A hold whose flag is `.` ends by itself.
  local is_it = record and find(record, ARGV[i + 1], 2, true) == 2 and byte(record) ~= 46
  answers[i] = is_it and call('PEXPIRE', KEYS[i], ttl) or 0
end
return answers
