-- What one server does for people and tools: `evict`, `bar` and `inspect`. It follows `node.lua`, whose functions it uses. Claims
-- are named by a hash of their id, which is the same on every server and releases nothing.
-- ARGV: verb, and what the verb takes.

-- All holders: a walk, for people and tools.
local function holders()
  local found = {}
  if owner then found[value] = owner end
  local all = value == SHARED and call('HGETALL', HOLDERS) or {}
  for i = 1, #all, 2 do
    local h = read(all[i + 1])
    if h and h.deadline > now then found[all[i]] = h end
  end
  return found
end

-- evict: the start of a hash. Ends a hold of another tool whose value has it. Answers `ended` or `none`.
if verb == 'evict' then
  if not foreign or string.sub(redis.sha1hex(value), 1, #id) ~= id then return 'none' end
  notify_observers()
  clear()
  notify_waiters()
  return 'ended'
end

-- bar: hash token turns attempt ttl, as some server has the hold that is to end. Answers `ended` or `none`. The hold may be here
-- under a token of this server's own, which its client has not written over yet: it ends here too. Or it may come only now: then
-- it gets a greater token. And where its client writes its token back, it is told that the hold is gone, until the last lease has
-- run out.
if verb == 'bar' then
  local token, its_turns, upto, lease, answer = tonumber(ttl), mode, turns, channel, 'none'
  for holder, h in pairs(holders()) do
    if redis.sha1hex(holder) == id and (h.token == token or h.attempt - upto <= 0) then
      end_hold(holder)
      call('PUBLISH', h.channel, 'evicted ' .. holder)
      notify_waiters()
      answer = 'ended'
    end
  end
  remember(math.max(last_token(), token + its_turns - 1))
  call('ZREMRANGEBYSCORE', EVICTED, '-inf', now)
  call('ZADD', EVICTED, now + 2 * lease, int(token))
  outlive(EVICTED, 2 * lease)
  return answer
end

-- inspect. Answers a list: `held hash token since turns attempt ttl label`, `foreign hash left value` (left: -1 for ever; the value is cut),
-- `waits hash 0 since 0 0 0 label`.
local seen = {}
for holder, h in pairs(holders()) do
  local it = { 'held', redis.sha1hex(holder), int(h.token), h.since, h.turns, h.attempt, h.ttl, h.label }
  seen[#seen + 1] = table.concat(it, ' ')
end
if foreign then
  seen[1] = table.concat({ 'foreign', redis.sha1hex(value), int(call('PTTL', LOCK)), string.sub(value, 1, 64) }, ' ')
end
for _, claim in ipairs(call('ZRANGE', QUEUE, 0, -1)) do
  local w = waiter(claim)
  if w then seen[#seen + 1] = table.concat({ 'waits', redis.sha1hex(claim), 0, w.joined, 0, 0, 0, w.label }, ' ') end
end
return seen
