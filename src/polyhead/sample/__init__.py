"""The packaged sample: labelled customer-support messages and message pairs, described in docs/project/sample.md."""
