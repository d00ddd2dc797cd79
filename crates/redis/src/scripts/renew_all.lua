-- Renews several names in one step: `renew` is a script for one name.
-- KEYS: those of each name, and the fence. ARGV: the ttl, and the attempt; then for each what its record has behind the
-- flag if it is an exclusive hold, `id token kind n of ttl `, with token 0 while it waits.
-- Answers for each what `renew` answers.
local answers, names = {}, #ARGV - 2
for i = 1, names do
  local id, token = string.match(ARGV[i + 2], '^(%x+) (%d+) ')
  answers[i] = renew(keys_of(i, names), { id, ARGV[1], ARGV[2], token })
end
return answers
