#!lua flags=allow-oom
-- Has the gate witness how far the database has come with the sale. May be repeated, and takes no number. Begins with
-- freeze_if_behind.lua and witness_place.lua.
--
-- KEYS  1 sale
-- ARGV  1 epoch  2 seq     the highest known number of this sale
--       3 line   4 number  the highest known place
-- Reply not_loaded | {line, number}, the highest place that the gate knows

if not state then return 'not_loaded' end
return {line, number}
