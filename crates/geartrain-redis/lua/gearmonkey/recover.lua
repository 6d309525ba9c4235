-- Queues jobs again whose leases have expired, and takes lost workers off the count. Replies both.
-- ARGV: now in ms, now in seconds, how many lost workers end a job
local expired, gone = recover(ARGV[4], ARGV[5], ARGV[6])
return { expired, gone }
