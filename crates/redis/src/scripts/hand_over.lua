-- The short way of a release into a queue, before most of the rest is defined: nobody observes, and the first waiter lives and wants the
-- lock for itself. Where the clock stepped back, the long way corrects what is there.
if found and string.sub(found, 1, 33) == '+' .. id then
  local numbers = call('HMGET', QUEUE, 'h', 'n')
  local head, left = tonumber(numbers[1] or 0) + 1, tonumber(numbers[2] or 0) - 1
  local deadline, record = string.match(call('HGET', QUEUE, head) or '', '^(%d+) (.*)$')
  local e, lease = read(record), deadline and deadline - now
  if e and e.kind == 'exclusive' and lease > 0 and lease <= tonumber(e.ttl) then
    if left > 0 then call('HDEL', QUEUE, head, e.id) else call('DEL', QUEUE) end
    e.token, e.floor = 0, e.token
    number(e)
    if left > 0 then call('HSET', QUEUE, 'h', head, 'n', left) end
    e.flag = left > 0 and '+' or '-'
    call('SET', LOCK, text_of(e), 'PX', lease)
    notify(e)
    return 'ok'
  end
end

