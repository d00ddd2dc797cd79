-- Tries what the scripts of a store call, in calls that do nothing. A server looks at rights before it looks at arguments.
-- KEYS: the keys in ARGV, unless it is one of them that is refused.
-- ARGV: a key that never exists, how many calls, the calls, and keys. In a call `-` stands for that key, and `#` for the first of these.
-- Answers for each that was refused: the command, or `~` and the key, and in the next line what was said.
local refused, last = {}, ARGV[2] + 2
local stands_for = { ['-'] = ARGV[1], ['#'] = ARGV[last + 1] }

local function try(what, words)
  local said = redis.pcall(unpack(words))
  if type(said) == 'table' and said.err then refused[#refused + 1] = what .. '\n' .. said.err end
end

for i = 3, last do
  local words = {}
  for word in string.gmatch(ARGV[i], '%S+') do words[#words + 1] = stands_for[word] or word end
  try(words[1], words)
end
for i = last + 1, #ARGV do
  try('~' .. ARGV[i], { 'get', ARGV[i] })
  try('~' .. ARGV[i], { 'pexpire', ARGV[i], 'x' })
end
return refused
