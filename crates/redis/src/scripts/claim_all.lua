-- Several names in one step: all are looked at before any is claimed. `blocked_by` and `claim` are scripts for one name.
-- KEYS: the lock for each name, and the fence. ARGV: those of a claim, without its id; then the id for each name, and the floors, if there are any.
-- Answers what each claim answers; or `busy` and what is in the way, with the number of its claim; or `more`.
local claims, more = {}, false
for i = 1, #KEYS - 1 do
  claims[i] = { { KEYS[i], KEYS[#KEYS] }, { ARGV[i + 4], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'tries', ARGV[i + #KEYS + 3] } }
end
for i, asked in ipairs(claims) do
  local refusal = redis.call('EXISTS', asked[1][1], '{' .. asked[1][1] .. '}:l') > 0 and blocked_by(unpack(asked))
  if refusal == 'more' then return refusal end
  if refusal then return { refusal, i - 1 } end
end
for i, asked in ipairs(claims) do
  claims[i] = claim(unpack(asked))
  more = more or claims[i] == 'more'
end
return more and 'more' or claims
