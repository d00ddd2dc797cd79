-- The short way of a release into a queue: nobody observes, and the first waiter lives and wants the lock for itself.
local e = holder and holder.id == id and holder.flag == '+' and waiter(gone + 1)
if e and e.kind == 'exclusive' and e.deadline > now then
  leave(e)
  number(e)
  if moved then call('HSET', QUEUE, 'h', gone, 'n', waiters) end
  e.flag = waiters > 0 and '+' or '-'
  call('SET', LOCK, text_of(e), 'PX', e.deadline - now)
  notify(e)
  return 'ok'
end

