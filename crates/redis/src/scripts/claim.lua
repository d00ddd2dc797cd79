-- Takes or keeps a place, in one step.
-- ARGV: id, 1 to wait or 0 to try, ttl, turns, attempt, mode (`kind n of`), channel, label
-- Answers `granted token turns`; `differ of` if the queue has another number of permits; `waiting` (to a newcomer that only
-- tries: `busy`) and what is in the way; or `more`, and it counts once it is called again.
waits = waits == '1'
local before = admit_waiters()
local asked, e = read(new_entry(0)), get(id)
if exhausted then
  commit()
  return 'more'
elseif is_live(e) and is_closed(e) then
  waits = false
  e = asked
elseif not is_live(e) then
  e = asked
  if e.kind == 'permits' then
    local theirs = kind == e.kind and of
    for _, other in ipairs(theirs and {} or call('ZRANGE', QUEUE, 0, -1)) do
      other = get(other)
      if is_live(other) and other.kind == e.kind then
        theirs = other.of
        break
      end
    end
    if theirs and theirs ~= e.of then
      commit()
      return 'differ ' .. theirs
    end
  end
  if not before and fits(e) then
    grant(e)
  elseif waits then
    save(e)
  end
else
  -- Known: a new lease, the label of the latest attempt, and the same token and mode, but for a downgrade.
  waits = true
  if tonumber(attempt) >= tonumber(e.attempt) then
    holder_changed = holder_changed or e.token > 0 and e.label ~= label
    e.channel, e.label = channel, label
  end
  extend(e, ttl, attempt)
  if e == holder and asked.kind == 'shared' then
    holder, kind, of = nil, asked.kind, asked.of
    e.kind, e.of = kind, of
    save(e)
    admit_waiters()
  else
    save(e)
  end
end
local answer = exhausted and 'more' or e.token > 0 and granted(e) or refusal(waits and 'waiting' or 'busy', waits and id)
commit()
return answer
