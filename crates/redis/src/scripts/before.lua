-- Says who stands in line before this claim, if anybody does; with the same ARGV as a claim.
call('GET', LOCK) -- says that it is of another type, before anything of the other names is written
local first, mine = settle(), get(ARGV[1])
local answer = spent and 'more'
if (kind or foreign or first) and not (is_live(mine) and mine.token > 0 and not is_closed(mine)) then
  answer = answer or refusal('busy')
end
commit()
if answer then return answer end
