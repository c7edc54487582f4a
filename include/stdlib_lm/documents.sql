-- The shorter files: many documents to hold out, and an epoch that two cores do in minutes.
SELECT * FROM library WHERE LENGTH(text) < 6000
