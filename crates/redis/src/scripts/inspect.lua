-- The holders and the waiters, without their ids.
-- Answers a list: `foreign` if another tool holds it, then `token since kind n of label` for each of ours in the order of the
-- queue, with token 0 for waiters; or `more`.
if not found[1] then call('GET', LOCK) end -- fails if it is of another type
admit_waiters()
commit()
if exhausted then return 'more' end
local queue, answer = { holder }, { foreign and 'foreign' or nil }
for _, id in ipairs(holder and {} or call('ZRANGE', SHARERS, 0, -1)) do
  queue[#queue + 1] = get(id)
end
table.sort(queue, function(a, b) return a.token < b.token end)
for _, id in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
  queue[#queue + 1] = get(id)
end
for _, e in ipairs(queue) do
  if is_live(e) then answer[#answer + 1] = table.concat({ int(e.token), e.since, e.kind, e.n, e.of, e.label }, ' ') end
end
return answer
