#!lua
-- The beginning of every script that takes a sale's next number, and of the one that only checks. A gate that is
-- behind its caller has lost writes. It freezes, because taking another number would hide the loss. A closed sale
-- is left alone, because it sells nothing. (Admission makes the same check on the fields that it reads anyway.)
-- The highest known number is kept in `known`, so that a rebuild can say how much was lost.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest known number of this sale
-- Reply (none) sets `state` (nil if the sale is not loaded), `epoch`, `seq` and `behind` for the script that follows

local state, epoch, seq, behind
do
  local sale = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'seq')
  if sale[1] then
    state, epoch, seq = sale[1], tonumber(sale[2]), tonumber(sale[3])
    local known_epoch, known_seq = tonumber(ARGV[1]), tonumber(ARGV[2])
    behind = state ~= 'closed' and (epoch < known_epoch or (epoch == known_epoch and seq < known_seq))
    if behind then
      local kept = redis.call('HGET', KEYS[1], 'known') or '0 0'
      local kept_epoch, kept_seq = string.match(kept, '^(%d+) (%d+)$')
      kept_epoch, kept_seq = tonumber(kept_epoch), tonumber(kept_seq)
      if known_epoch > kept_epoch or (known_epoch == kept_epoch and known_seq > kept_seq) then
        redis.call('HSET', KEYS[1], 'known', string.format('%d %d', known_epoch, known_seq))
      end
      redis.call('HSET', KEYS[1], 'state', 'frozen')
      state = 'frozen'
    end
  end
end
