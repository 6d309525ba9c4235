"""Jobs about files: the klasses `files.Count` and `files.Checksum`."""
import hashlib


class Count:
    retry_on = (FileNotFoundError,)  # the file may still come

    @staticmethod
    def process(job):
        """Counts lines. Runs in each queue that has no method of its own."""
        return {"lines": Count.total(job, lambda text: text.count("\n"))}

    @staticmethod
    def words(job):
        """Runs instead of `process` for the jobs of the queue `words`."""
        return {"words": Count.total(job, lambda text: len(text.split()))}

    @staticmethod
    def total(job, count):
        paths, total = job.data["paths"], 0
        for done, path in enumerate(paths, start=1):
            with open(path, encoding="utf-8") as file:
                total += count(file.read())
            job.progress(done, len(paths))
        return total


class Checksum:
    @staticmethod
    def process(job):
        data = job.data if isinstance(job.data, bytes) else job.data.encode()
        return hashlib.sha256(data).hexdigest()
