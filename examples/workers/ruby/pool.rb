#!/usr/bin/env ruby
# Runs job after job: loads the klass, calls the method named like the queue, else `process`.
# A cancelled job ends this process by SIGTERM, which runs `ensure` blocks.
require "json"

LINES = $stdout.dup
$stdout.reopen($stderr) # what job code prints is no line of the protocol
$LOAD_PATH.unshift(__dir__)
Encoding.default_external = Encoding::UTF_8

def send_line(line) = LINES.tap { |lines| lines.puts(JSON.generate(line)) }.flush

Job = Struct.new(:jid, :queue, :klass, :data) do
  def progress(done, total) = send_line({ jid: jid, progress: [done, total] })
  def end_with(verdict, kind, message)
    send_line({ jid: jid, verdict => { group: "#{queue}-#{kind}", message: message } })
  end
  def run
    begin
      file = klass[/\A[A-Z]\w*/] or raise NameError, "#{klass} is not the name of a class"
      require file.gsub(/(?<=[a-z\d])(?=[A-Z])/, "_").downcase
      type = Object.const_get(klass)
    rescue StandardError, ScriptError => error
      return end_with(:fail, error.class, "Failed to import #{klass}: #{error.message[/.*/]}")
    end
    method = [queue, "process"].find { |name| type.singleton_methods.include?(name.to_sym) }
    return end_with(:fail, "method-missing", "#{klass} has no method #{queue} or process") unless method
    send_line({ jid: jid, complete: type.public_send(method, self) })
  rescue *(type&.const_defined?(:RETRY_ON) ? type::RETRY_ON : [SystemCallError, IOError]) => error
    end_with(:retry, error.class, error.message)
  rescue StandardError => error
    end_with(:fail, error.class, error.full_message(highlight: false))
  end
end
send_line({ ready: true })
$stdin.each_line do |line|
  jid, queue, klass, data, encoding = JSON.parse(line).values_at(*%w[jid queue klass payload encoding])
  Job.new(jid, queue, klass, encoding == "bytes" ? data["$bytes"].unpack1("m0") : data).run
end
