-- The shorter files: many documents to hold out, and an epoch takes a minute on two cores.
SELECT * FROM library WHERE LENGTH(text) < 6000
