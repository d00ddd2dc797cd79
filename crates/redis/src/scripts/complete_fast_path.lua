local _, token, fire, lasts, flag, label, result = unpack(ARGV)

-- Another's completion that counts is no answer, and is not overwritten. One of this claim is the answer.
local done = completion()
if done and not done.id then return 'unreadable' end
if done and done.id == id then return { done_by(done), 0 } end
found = call('GET', LOCK)
local of_holder, its = string.match(found or '', '^[-+*](%x+) (%d+) exclusive ')
if of_holder ~= id or its ~= token or done and counts(done.fire, fire) then return 'lost' end

-- The lock goes first: a server whose memory is full takes that, and whatever a script writes after it.
local function record()
  call('DEL', LOCK)
  done = { token = token, fire = fire, rest = table.concat({ int(now), flag, #label, label, result }, ' ') }
  local text = table.concat({ '1', id, token, fire, done.rest }, ' ')
  if lasts == '-1' then call('SET', COMPLETION, text) else call('SET', COMPLETION, text, 'PX', lasts) end
end

-- No waiter and no observer is there.
if string.sub(found, 1, 1) == '-' then
  record()
  return done_by(done, lasts)
end

