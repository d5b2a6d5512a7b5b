"""Runs tests of Python modules and writes one line a test: `passed NAME`, `failed NAME`, `skipped NAME`.

    run_tests.py [--resource NAME] [--without WORD] unittest|trial RESULTS MODULE...

`started NAME` comes before, so that the last line names the test in which everything
hung; `end` stands last. What the tests print goes where they print it. --resource is what CPython's own
runner calls so (`-u network`); without it those tests skip themselves, as there.
"""

import argparse
import sys
import unittest


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("runner", choices=["unittest", "trial"])
    parser.add_argument("results")
    parser.add_argument("--resource", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("modules", nargs="+")
    return parser.parse_args()


class Book:
    """One line a test; a test that fails in several ways fails once."""

    def __init__(self, path):
        self.file = open(path, "w", buffering=1)
        self.running = False
        self.verdict = None

    def start(self, test):
        self.running, self.verdict = True, None
        print("started", test.id(), file=self.file)

    def note(self, test, verdict):
        if not self.running:
            # setUpClass, setUpModule and skipped modules speak outside any test.
            print(verdict, test.id(), file=self.file)
        elif self.verdict != "failed":
            self.verdict = verdict

    def stop(self, test):
        print(self.verdict or "failed", test.id(), file=self.file)
        self.running = False


def recording(base, book):
    """A result class of `base` that keeps the book."""

    class Recording(base):
        def startTest(self, test):
            book.start(test)
            super().startTest(test)

        def stopTest(self, test):
            super().stopTest(test)
            book.stop(test)

        def addSuccess(self, test):
            super().addSuccess(test)
            book.note(test, "passed")

        def addFailure(self, test, error):
            super().addFailure(test, error)
            book.note(test, "failed")

        def addError(self, test, error):
            super().addError(test, error)
            book.note(test, "failed")

        def addSubTest(self, test, subtest, error):
            super().addSubTest(test, subtest, error)
            if error is not None:
                book.note(test, "failed")

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            book.note(test, "skipped")

        def addExpectedFailure(self, test, *details):
            super().addExpectedFailure(test, *details)
            book.note(test, "passed")

        def addUnexpectedSuccess(self, test, *details):
            super().addUnexpectedSuccess(test, *details)
            book.note(test, "failed")

    return Recording


def leaves(suite):
    for test in suite:
        if hasattr(test, "__iter__"):
            yield from leaves(test)
        else:
            yield test


def run_unittest(options, book):
    from test import support

    support.use_resources = options.resource
    found = unittest.defaultTestLoader.loadTestsFromNames(options.modules)
    wanted = unittest.TestSuite(
        test for test in leaves(found) if not any(word in test.id() for word in options.without)
    )
    base = unittest.TextTestResult
    unittest.TextTestRunner(resultclass=recording(base, book), verbosity=2).run(wanted)


def run_trial(options, book):
    from twisted.trial import reporter, runner

    found = runner.TestLoader().loadByNames(options.modules)
    wanted = runner.TestSuite(
        test for test in leaves(found) if not any(word in test.id() for word in options.without)
    )
    base = reporter.VerboseTextReporter
    runner.TrialRunner(recording(base, book), workingDirectory="_trial").run(wanted)


def main():
    options = arguments()
    book = Book(options.results)
    {"unittest": run_unittest, "trial": run_trial}[options.runner](options, book)
    print("end", file=book.file)


if __name__ == "__main__":
    main()
