-- The holders and the waiters, without their ids.
-- ARGV: for an observer, for how many milliseconds what changes is to be published.
-- Answers a list: `foreign hash left value` if another tool holds it (left: -1 for ever; the value is cut), then `token since kind n of label` for each of ours in the order of the
-- queue, with token 0 for waiters; or `more`.
local observes, answer = ARGV[1], {}
if foreign then
  answer[1] = table.concat({ 'foreign', redis.sha1hex(found), int(call('PTTL', LOCK)), string.sub(found, 1, 64) }, ' ')
end
admit_waiters()
if observes then
  if call('PEXPIRE', OBSERVED, observes) == 0 then call('SET', OBSERVED, '', 'PX', observes) end
  if unobserved then call('SETRANGE', LOCK, 0, '*') end
end
commit()
if exhausted then return 'more' end
for _, entries in ipairs({ holding(), waiting() }) do
  for _, e in ipairs(entries) do
    answer[#answer + 1] = table.concat({ int(e.token), e.since, e.kind, e.n, e.of, e.label }, ' ')
  end
end
return answer
