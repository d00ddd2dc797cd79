-- Who holds and who waits; writes nothing and shows no id.
-- Answers a list: first `free`, `foreign`, or `held token since label`; then `since label` of each live place in line.
local h = hold()
local answer = { not holder and 'free' or 'foreign' }
if h then answer[1] = table.concat({ 'held', h.token, h.since, h.label }, ' ') end
for _, id in ipairs(redis.call('ZRANGE', LINE, 0, -1)) do
  local p = place_of(id)
  if p then answer[#answer + 1] = p.since .. ' ' .. p.label end
end
return answer
