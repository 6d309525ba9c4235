-- Ends a job. ARGV: id, token, worker, status, output, reason or ''
local from, no = held(ARGV[4], ARGV[5], ARGV[6])
if not from then return no end
finish(ARGV[4], ARGV[7], ARGV[8], ARGV[9])
return { 'ok' }
