-- The completion of a name: the record that its work is done. Its key is the last of `KEYS`.
--
--       {lock}:d      string, `1 id token fire at flag n label result`. It expires when its keep ends.
-- The id is that of the claim that did the work, and the token that of its hold. `at` is in milliseconds of the server's clock, `n` the
-- length of the label in bytes. Flags: `-` no result, `=` a result, `~` the beginning of one. The first word is the version.
local COMPLETION = KEYS[#KEYS]

-- The completion, if there is one. Without an id it is one that this version cannot read.
local function completion()
  local text = redis.pcall('GET', COMPLETION)
  if not text then return nil end
  local id, token, fire, rest = string.match(type(text) == 'string' and text or '', '^1 (%x+) (%d+) (%d+) (%d+ [-=~] %d+ .*)$')
  return { id = id, token = token, fire = fire, rest = rest }
end

-- Compares the numbers of fires, which are not exact as numbers of Lua.
local function counts(fire, for_fire)
  return #fire > #for_fire or #fire == #for_fire and fire >= for_fire
end

-- Answers `done token fire left at flag n label result`, where `left` is -1 if it counts for ever. The claim's id is not told.
local function done_by(it, left)
  return table.concat({ 'done', it.token, it.fire, left or int(redis.call('PTTL', COMPLETION)), it.rest }, ' ')
end

