#!lua flags=allow-oom
-- Freezes a sale whose gate is behind what is known of it elsewhere: it has lost writes, and what
-- it would sell may be sold already. Begins with known.lua, which does it.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest number that is known anywhere
-- Reply not_loaded | {frozen|kept, epoch, seq}, with the gate's own number

if not state then return 'not_loaded' end
return {behind and 'frozen' or 'kept', epoch, seq}
