-- Extends exclusive holds, many in one step, by the fast path: the key, and not the entry in it.
-- KEYS: the locks. ARGV: for each what its entry begins with, `id token `, and the ttl.
-- Answers for each 1; or 0 where that is not enough, and `renew` has to answer.
local answers = {}
for i, entry in ipairs(redis.call('MGET', unpack(KEYS))) do
  local start, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local same = entry and string.sub(entry, 1, #start) == start
  local attempt, its = string.match(same and entry or '', '^%d+ %d+ (%d+) (%d+) ', #start + 1)
  answers[i] = its == ttl and attempt ~= CLOSED and redis.call('PEXPIRE', KEYS[i], ttl) or 0
end
return answers
