#!/usr/bin/env ruby
# Runs one job: loads its klass, calls the method named like its queue, else `process`.
# The klass Files::Count is in files.rb, beside this file.
require "json"

RETRY, GIVE_UP = 75, 64
RESULT = $stdout.dup.binmode
$stdout.reopen($stderr) # what job code prints is no part of the result
$LOAD_PATH.unshift(__dir__)
Encoding.default_external = Encoding::UTF_8

Job = Struct.new(:jid, :queue, :klass, :data) do
  def progress(done, total)
    @reports ||= IO.for_fd(3, "w").tap { |reports| reports.sync = true }
    @reports.puts("progress #{done}/#{total}")
  end
end

# JSON if it is JSON, else text, else bytes.
def decode(payload)
  payload.valid_encoding? ? JSON.parse(payload) : payload.b
rescue JSON::ParserError
  payload
end

job = Job.new(*%w[JID QUEUE KLASS].map { |name| ENV.fetch("GEARTRAIN_JOB_#{name}") }, decode($stdin.read))
begin
  file = job.klass[/\A[A-Z]\w*/] or raise NameError, "#{job.klass} is not the name of a class"
  require file.gsub(/(?<=[a-z\d])(?=[A-Z])/, "_").downcase
  klass = Object.const_get(job.klass)
  method = [job.queue, "process"].find { |name| klass.singleton_methods.include?(name.to_sym) }
  raise NoMethodError, "#{job.klass} has no method #{job.queue} and no method process" unless method
  RESULT.write(JSON.generate(klass.public_send(method, job)))
rescue StandardError, ScriptError => error
  warn error.full_message(highlight: false)
  retry_on = klass&.const_defined?(:RETRY_ON) ? klass::RETRY_ON : [SystemCallError, IOError]
  exit(klass && retry_on.any? { |type| error.is_a?(type) } ? RETRY : GIVE_UP)
end
