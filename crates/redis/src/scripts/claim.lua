-- Takes or keeps a place, in one step.
-- ARGV: id, 1 to wait or 0 to try, ttl, turns, attempt, mode (`kind n of`), channel, label
-- Answers `granted token turns`; `differ of` if those in line say another number of permits; or `waiting` (to a newcomer
-- that only tries: `busy`) and who is in the way.
waits = waits == '1'
local before = settle()
local asked, e = read(fresh(0)), get(id)
if not is_live(e) then
  e = asked
  if e.kind == 'permits' then
    local theirs = kind == e.kind and of
    for _, other in ipairs(theirs and {} or call('ZRANGE', LINE, 0, -1)) do
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
  -- Known: a new lease, the new label, and the same token and mode, but for a downgrade.
  waits = true
  stirred = stirred or e.token > 0 and e.label ~= label
  extend(e, ttl, attempt)
  e.channel, e.label = channel, label
  if e == holder and asked.kind == 'shared' then
    holder, kind, of = nil, asked.kind, asked.of
    e.kind, e.of = kind, of
    save(e)
    settle()
  else
    save(e)
  end
end
commit()
return e.token > 0 and granted(e) or refusal(waits and 'waiting' or 'busy', waits and id)
