-- Answers what is in the way of this claim, unless the queue before it is empty; with the same ARGV as a claim. A lock of another
-- type fails here, before anything of the other names is written.
local first, e = admit_waiters(), mine()
local answer = exhausted and 'more'
if (kind or foreign or first) and not (is_live(e) and e.token > 0 and e.flag ~= '.') then
  answer = answer or refusal('busy')
end
commit()
if answer then return answer end
