-- Who holds and who waits; shows no id.
-- Answers a list: `foreign` if another tool holds it, then `token since kind n of label` for each of ours in the order of the
-- line, with token 0 for those that wait; or `more`.
if not found[1] then call('GET', LOCK) end -- says that it is of another type
settle()
commit()
if spent then return 'more' end
local line, answer = { holder }, { foreign and 'foreign' or nil }
for _, id in ipairs(holder and {} or call('ZRANGE', SHARERS, 0, -1)) do
  line[#line + 1] = get(id)
end
table.sort(line, function(a, b) return a.token < b.token end)
for _, id in ipairs(call('ZRANGE', LINE, 0, -1)) do
  line[#line + 1] = get(id)
end
for _, e in ipairs(line) do
  if is_live(e) then answer[#answer + 1] = table.concat({ int(e.token), e.since, e.kind, e.n, e.of, e.label }, ' ') end
end
return answer
