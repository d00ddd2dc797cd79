-- The keys of the nth of so many names: the five of each come one after the other, and the fence of all behind them.
local function keys_of(n, names)
  local last = 5 * n
  return { KEYS[last - 4], KEYS[last - 3], KEYS[last - 2], KEYS[last - 1], KEYS[last], KEYS[5 * names + 1] }
end

