#!lua
-- How every script begins that takes a sale's next number, and the one that only looks. A gate that is
-- behind what its caller knows has lost writes: it freezes, instead of taking a number that would hide
-- that. A closed sale sells nothing, whatever it lost. (`admit.lua` does the same with what else it reads.)
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest number that is known of this sale
-- Reply (none) it leaves `state`, nil where the sale is not loaded, `epoch`, `seq` and `behind`

local state, epoch, seq, behind
do
  local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
  if sale[1] then
    state, epoch, seq = sale[1], tonumber(sale[2]), tonumber(sale[3])
    local known_epoch, known_seq = tonumber(ARGV[1]), tonumber(ARGV[2])
    behind = state ~= 'closed' and (epoch < known_epoch or (epoch == known_epoch and seq < known_seq))
    if behind then
      redis.call('HSET', KEYS[1], 'state', 'frozen')
      state = 'frozen'
    end
  end
end
