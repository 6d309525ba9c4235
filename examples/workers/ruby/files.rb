# Jobs about files: the klasses Files::Count and Files::Checksum.
require "digest"

module Files
  class Count
    RETRY_ON = [Errno::ENOENT].freeze # the file may still come

    # Counts lines. Runs in each queue that has no method of its own.
    def self.process(job)
      { lines: total(job) { |text| text.count("\n") } }
    end

    # Runs instead of `process` for the jobs of the queue `words`.
    def self.words(job)
      { words: total(job) { |text| text.split.size } }
    end

    private_class_method def self.total(job)
      paths = job.data.fetch("paths")
      paths.each.with_index(1).sum do |path, done|
        yield(File.read(path)).tap { job.progress(done, paths.size) }
      end
    end
  end

  class Checksum
    def self.process(job)
      Digest::SHA256.hexdigest(job.data)
    end
  end
end
