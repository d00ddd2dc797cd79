-- Several names in one step: all are looked at before any is claimed. `blocked_by` and `claim` are scripts for one name.
-- KEYS: those of each name, and the fence. ARGV: those of a claim, without its id; then the id for each name, and the floors, if there are any.
-- Answers what each claim answers; or `busy` and what is in the way, with the number of its claim; or `more`.
local claims, names, more = {}, (#KEYS - 1) / 5, false
for i = 1, names do
  claims[i] = { keys_of(i, names), { ARGV[i + 4], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'tries', ARGV[i + names + 4] } }
end
for i, asked in ipairs(claims) do
  local refusal = redis.call('EXISTS', asked[1][1], asked[1][2]) > 0 and blocked_by(unpack(asked))
  if refusal == 'more' then return refusal end
  if refusal then return { refusal, i - 1 } end
end
for i, asked in ipairs(claims) do
  claims[i] = claim(unpack(asked))
  more = more or claims[i] == 'more'
end
return more and 'more' or claims
