-- Takes or keeps a place for work that is done once, unless that is done. `claim` and `finish` are scripts for one name.
-- ARGV: those of a claim, and the number of the fire
-- Answers what a claim answers; or `done …`, and nothing of the claim is left; or `unreadable`.
local fire, done = table.remove(ARGV), completion()
if done and not done.id then return 'unreadable' end
if done and counts(done.fire, fire) then
  finish(KEYS, { ARGV[1], done.fire, 0 })
  return done_by(done)
end
local answer = claim(KEYS, ARGV)
-- A place says which completion counts for it.
if type(answer) == 'string' and string.sub(answer, 1, 8) == 'waiting ' then
  redis.call('HSET', KEYS[2], 'f' .. redis.call('HGET', KEYS[2], ARGV[1]), fire)
end
return answer
