#!lua flags=allow-oom
-- Moves a sale to another state, if the move is allowed from its current state. Takes a number, so that a lost pause
-- is detected like a lost order. Begins with freeze_if_behind.lua.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest known number of this sale
--       3 to
--       4 the epoch that the gate must have; '' if any will do
--       then the states from which the move is allowed
--       last     the time by Redis's clock after which nothing is done
-- Reply not_loaded | late | {moved, epoch, seq} | {already, epoch, seq} | {refused, state}

if not state then return 'not_loaded' end
if is_late() then return 'late' end
if ARGV[4] ~= '' and epoch ~= tonumber(ARGV[4]) then return {'refused', state} end
if state == ARGV[3] then return {'already', epoch, seq} end
-- A sale that is behind can be closed, and nothing else.
if behind and ARGV[3] ~= 'closed' then return {'refused', state} end

for at = 5, #ARGV - 1 do
  if state == ARGV[at] then
    redis.call('HSET', KEYS[1], 'state', ARGV[3], 'seq', seq + 1)
    return {'moved', epoch, seq + 1}
  end
end
return {'refused', state}
