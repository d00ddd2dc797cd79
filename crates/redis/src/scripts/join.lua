-- The short way to a place, or to a refusal: behind an exclusive holder nobody is admitted.
if holder and holder.id ~= id and not ticket and guess ~= '0' and string.sub(record, 1, 1) ~= 'p' then
  local e = not tries and { id = id, ticket = tickets + 1, deadline = now + ttl }
  if e then
    tickets, waiters = e.ticket, waiters + 1
    put(e, '-' .. id .. ' 0 ' .. record)
    if holder.flag == '-' then call('SETRANGE', LOCK, 0, '+') end
  end
  return refusal(e and 'waiting' or 'busy', e)
end

