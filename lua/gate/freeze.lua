#!lua flags=allow-oom
-- Freezes a sale if its gate is behind what is known elsewhere: it has lost writes, and anything it would sell may
-- already be sold. Begins with freeze_if_behind.lua, which does the freezing.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest number known anywhere
-- Reply not_loaded | {frozen|kept, epoch, seq}, with the gate's own number

if not state then return 'not_loaded' end
return {behind and 'frozen' or 'kept', epoch, seq}
