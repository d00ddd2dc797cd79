-- Answers what is in the way of this claim, unless the queue before it is empty; with the same ARGV as a claim.
call('GET', LOCK) -- fails if it is of another type, before anything of the other names is written
local first, mine = admit_waiters(), get(ARGV[1])
local answer = exhausted and 'more'
if (kind or foreign or first) and not (is_live(mine) and mine.token > 0 and not is_closed(mine)) then
  answer = answer or refusal('busy')
end
commit()
if answer then return answer end
