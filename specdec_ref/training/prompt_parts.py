# ruff: noqa: E501 - a text to be read by a model is one line
"""The words that `prompts` composes prompts of. All of it was written for this course.

In a block of words, values stand between semicolons, and lines are joined. In a block of texts, values stand between
lines of dashes. `$name` in a value is a slot, filled from the block of that name; `$name2` is another value of it.
"""

from __future__ import annotations


def _words(block: str) -> tuple[str, ...]:
    return tuple(" ".join(value.split()) for value in block.split(";"))


def _texts(block: str) -> tuple[str, ...]:
    return tuple(value.strip("\n") for value in block.split("\n----\n"))


# The ways of asking, by kind of task.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "story": _texts("""Write a short story about $hero who $quest $place.
----
Tell me a short bedtime story about $hero $place. $ending
----
Write the opening paragraph of a story in which $hero $quest.
----
Write a story of about 100 words. It happens $place, and $hero $quest. $ending
----
Tell a funny little story: $hero meets $hero2 $place.
----
Write a fable in which $hero and $hero2 learn that $moral.
----
Write a short poem about $hero $place.
----
$name and $name2 are $place when they meet $hero. Write what happens next.
----
Continue this story: "It was late when $name heard a knock. Outside stood $hero, who $quest."
----
Write a short dialogue between $hero and $hero2 about $moral_topic."""),
    "explain": _texts("""Explain $topic to $audience.
----
Tell me about $topic. $size
----
Can you tell me how to think about $topic? $size
----
Why should I know about $topic? $size
----
Explain $topic with an example from daily life.
----
Give me three facts about $topic.
----
What do people often get wrong about $topic?
----
Write a short paragraph about $topic for a school magazine.
----
What is the difference between $contrast?
----
Explain the difference between $contrast to $audience."""),
    "howto": _texts("""How do I $task?
----
How do I $task? Give me numbered steps.
----
Give me five tips to $task.
----
What do I need to $task?
----
What mistakes should I avoid when I $task?
----
I am $who and I want to $task. Where do I start?
----
I have only $time to $task. What should I do?
----
Write short instructions for $who who wants to $task.
----
Make a checklist to $task."""),
    "question": _texts("""What is the capital of $country?
----
Tell me two interesting things about $country.
----
What would you pack for a trip to $country in $month?
----
What is $number plus $number2? Show your work.
----
What is $number times $number2?
----
If a $thing costs $number euros and I buy $few of them, how much do I pay? Think step by step.
----
$name has $few boxes with $number pencils each and gives away $few2 pencils. How many are left?
----
A train leaves at $hour and travels for $few hours. When does it arrive?
----
Is it true that $claim?
----
Which is better for $purpose: $option or $option2?
----
What does the word "$word" mean? Use it in a sentence.
----
Give me three words that mean the same as "$word".
----
Use the words "$word", "$word2" and "$thing" in one sentence.
----
What $animal_question about a $animal?
----
What is the opposite of "$word"? Explain briefly.
----
List ten $list_of.
----
List five $list_of and say one sentence about each."""),
    "chat": _texts("""Hi! My name is $name and I am $who. $feeling What do you advise?
----
$feeling Can you cheer me up?
----
$feeling What can I do about it?
----
Give me $few ideas for $occasion.
----
I am planning $occasion for $number people. What should I think of first?
----
Write a short message to $name to say that $message.
----
Write a polite email to $name: $message. Sign it with $name2.
----
Write an invitation to $occasion $place.
----
Write a thank-you note to $name for $a_thing.
----
Pretend to be $hero and introduce yourself.
----
What would $hero say to $who?
----
Recommend a hobby for $who who likes $like and $like2.
----
Suggest a name for $business, and say why it is a good one.
----
Write a short advertisement for $business in $town.
----
Write three questions to ask $who in an interview about $like."""),
    "summary": _texts("""Summarize this text in one sentence.

$passage
----
Summarize the text below in two sentences.

$person_passage $fact_passage
----
What is this text about? Answer briefly.

$passage
----
Read the text and list its main points.

Text: $town_passage $fact_passage
----
Give this text a title.

$passage
----
Read the text and answer the question.

Text: $passage

Question: $passage_question
----
$passage

TL;DR"""),
    "rewrite": _texts("""Rewrite this text and change nothing but the name: replace $name by $name2.

$person_passage
----
Correct the spelling of this text. Keep everything else as it is.

$misspelt
----
Rewrite this text in the past tense.

$passage
----
Rewrite this text so that it is $tone.

$passage
----
Repeat this text word for word, and then add one sentence at the end.

$passage
----
Copy this text, with each sentence on a line of its own.

$passage
----
Turn this text into a bulleted list.

$passage
----
Put these words into alphabetical order: $word, $word2, $word3, $word4, $word5.
----
Change the town in this text to $town2.

$town_passage
----
Write this list as one sentence: $thing, $thing2, $thing3, $thing4."""),
    "code": _texts("""Write a Python function that $function.
----
Write a Python function that $function. $code_wish
----
Write a short Python program that $function, and explain it.
----
How do I write a Python function that $function? Show an example of its use.
----
Write a Python function called $identifier that $function.
----
Write three assert statements that test a Python function that $function."""),
    "code-edit": _texts("""$code_edit

```python
$snippet
```
----
$code_edit Return the whole code and change nothing else.

```python
$snippet
```
----
Here is some Python code:

```python
$snippet
```

$code_edit
----
Explain what this Python code does.

```python
$snippet
```
----
```python
$snippet
```

Write the same code again with $code_change."""),
}

# How many prompts of each kind are composed. Together several thousand, and about two million tokens of answers.
COUNTS: dict[str, int] = {
    "story": 2000,
    "explain": 1400,
    "howto": 1300,
    "question": 1500,
    "chat": 1400,
    "summary": 1300,
    "rewrite": 1300,
    "code": 1300,
    "code-edit": 1300,
}

# What the slots are filled with.
PARTS: dict[str, tuple[str, ...]] = {
    "hero": _words("""a shy fox; an old lighthouse keeper; a girl who collects clocks; a robot that is afraid of rain;
        a baker with no sense of smell; a young sailor; a talking sparrow; a king who cannot sleep; a tired dragon;
        two brothers; a retired spy; a snowman; a curious goat; a cat that speaks three languages; a lost astronaut;
        a gardener; a postman on a red bicycle; a tiny elephant; a clumsy wizard; a boy with a paper boat;
        a blind musician; a grandmother who races cars; an honest thief; a ghost who likes tea; a beekeeper;
        a hedgehog; a doctor from the future; a mouse with a map; a painter who sees only blue; a lonely whale;
        a night watchman; a carpenter; a family of owls; a proud peacock; a student who is always late;
        a chess player; a little cloud; a farmer and his stubborn donkey; a tailor; a very small knight;
        a turtle who wants to fly; a librarian; a bus driver; a pair of lost gloves; a scientist; a puppy;
        a wolf who eats only berries; a fisherman; a clown without a circus; the last tree of a city"""),
    "quest": _words("""finds an old key; loses something precious; has to cross a river before night; hears a strange
        song; makes a promise that is hard to keep; discovers a hidden door; receives a letter without a sender; wants
        to win a race; tries to repair a broken clock; helps a stranger; must decide whom to trust; builds a boat;
        searches for a missing friend; plants a seed that grows overnight; learns to say sorry; finds a map drawn by a
        child; wakes up as somebody else; tells a lie that gets out of hand; saves a village from a flood; opens a
        small shop; has only one day left; breaks a rule for a good reason; wants to go home; meets an old enemy;
        finds a bag of coins; is given three wishes; has to keep a secret; follows a trail of feathers; stops the
        rain; learns to dance; gets lost in a snowstorm; solves a riddle; bakes the perfect cake; shares a last meal"""),
    "place": _words("""in a quiet village by the sea; on a train at night; in an empty museum; at the edge of a desert;
        in a forest of glass; on a small island; in a city without cars; under an old bridge; in a library that never
        closes; on the roof of a hospital; in a valley full of fog; on board a wooden ship; in a kitchen; on the moon;
        at a busy market; in a castle with one window; in a school during the holidays; at the bottom of a lake;
        in a mountain hut; in a garden behind a high wall; at an airport; in a tower of books; in a snowed-in town;
        on a farm; in a harbour; in a cave behind a waterfall; at a crossroads; in a theatre; beside a frozen river;
        in a greenhouse; on a long road; at the end of summer; during a storm; on the first day of spring"""),
    "ending": _words("""It should end happily.; It should end with a surprise.; It should have a sad ending.;
        Use simple words.; Begin with the weather.; End with a question.; Let there be a conversation in it.;
        Make it a little scary.; Make it funny.; Do not use any names.; Write it in the first person.;
        Write it in the present tense.; End with the word "home"."""),
    "moral": _words("""patience is stronger than speed; a small friend can be a great help; nobody is good at
        everything; it is wise to ask before you take; courage can be quiet; promises should be kept; sharing makes a
        meal better; old things have value too; listening is harder than talking; pride comes before a fall; work is
        lighter with company; mistakes are teachers; the loudest is not always right; kindness comes back"""),
    "moral_topic": _words("""the weather; a lost umbrella; what friendship is; the best soup in the world; time;
        whether money makes happy; a broken fence; dreams; who is braver; the meaning of home; a plan to escape;
        the stars; an unfair game; growing old; a birthday cake; how to be a good neighbour; music; a missing key"""),
    "name": _words("""Mara; Tomas; Ines; Oskar; Leila; Pavel; Greta; Hugo; Nadia; Felix; Amara; Jonas; Sofia; Emil;
        Yara; Anton; Clara; Rafi; Helena; Bruno; Mina; Viktor; Olga; Samir; Elsa; Diego; Priya; Kenji; Lucia; Omar;
        Freya; Mateo; Zoe; Ivan; Aisha; Noel; Ruth; Stefan; Carla; Tariq"""),
    "topic": _words("""photosynthesis; gravity; the water cycle; inflation; how a computer stores numbers; rainbows;
        the seasons; vaccines; plate tectonics; the immune system; black holes; how bread rises; electricity; tides;
        recycling; how a bicycle stays upright; supply and demand; evolution; the internet; how airplanes fly;
        volcanoes; compound interest; democracy; sleep; the greenhouse effect; magnets; sound waves; batteries;
        how bees make honey; the moon's phases; machine learning; probability; fractions; prime numbers; the human
        heart; digestion; how soap works; earthquakes; lightning; the printing press; ancient Rome; the Silk Road;
        coral reefs; deserts; migration of birds; fossils; atoms; the periodic table; refrigerators; satellites; GPS;
        encryption; passwords; open-source software; search engines; databases; recursion; sorting algorithms;
        binary search; version control; neural networks; language models; random numbers; compilers; memory in a
        computer; taxes; insurance; stocks; budgets; elections; human rights; the United Nations; trade; poverty;
        nutrition; vitamins; exercise; stress; memory; habits; friendship; empathy; creativity; music theory; rhythm;
        perspective in painting; poetry; fairy tales; theatre; photography; chess; football; swimming; the Olympic
        Games; tea; coffee; chocolate; salt; rice; fermentation; composting; soil; trees; mushrooms; spiders; whales;
        penguins; bats; the ocean floor; glaciers; rivers; wind power; solar panels; nuclear energy; steel; glass;
        paper; bridges; elevators; clocks; calendars; time zones; maps; compasses; telescopes; microscopes; lenses;
        mirrors; colours; smell; taste; pain; allergies; the common cold; antibiotics; blood; bones; muscles; skin;
        genes; stem cells; the brain; dreams; language; writing systems; translation; libraries; museums; money"""),
    "audience": _words("""a child of six; a curious teenager; my grandmother; a new colleague; someone who has never
        heard of it; a class of beginners; a friend over dinner; an engineer from another field; a visitor from the
        past; a tourist; a busy manager; a journalist"""),
    "size": _words("""Answer in one sentence.; Answer in two or three sentences.; Keep it short.; Give an example.;
        Explain it step by step.; Use a comparison.; Write one paragraph.; Use simple words.; List the main points."""),
    "contrast": _words("""a comet and an asteroid; weather and climate; a virus and a bacterium; a frog and a toad;
        a lake and a pond; speed and velocity; mass and weight; a list and a tuple in Python; a fruit and a vegetable;
        debit and credit; a novel and a short story; jam and jelly; a crocodile and an alligator; a stack and a queue;
        precision and accuracy; a republic and a monarchy; a bug and a feature; heat and temperature; an atom and a
        molecule; a loan and a gift; a simile and a metaphor; latitude and longitude; a process and a thread; butter
        and margarine; an expense and an investment; a moth and a butterfly; correlation and causation; a sea and an
        ocean; hardware and software; the mean and the median; a rumour and a fact; a planet and a star"""),
    "task": _words("""boil an egg; change a bicycle tyre; write a letter of application; learn a new language; plant
        tomatoes; clean a whiteboard; save money; sleep better; prepare for a job interview; bake bread; pack a
        suitcase; make a good cup of tea; start running; remember names; fold a shirt; fix a leaking tap; sharpen a
        knife; make pancakes; study for an exam; give a speech; paint a wall; build a bookshelf; make soup; water
        house plants; train a dog to sit; clean a keyboard; choose a laptop; back up photos; make a budget; plan a
        birthday party; take better photos; read more books; learn to swim; write a diary; make a paper airplane;
        tie a tie; remove a stain; cook rice; grow herbs on a balcony; wrap a present; find cheap flights; hang a
        picture; wash a wool sweater; start a small garden; meditate; play the guitar; draw a face; keep bees; make
        jam; organize a desk; write a poem; set up a tent; light a campfire; iron a shirt; mend a sock; reduce waste;
        learn to type faster; prepare a presentation; take notes; stop procrastinating; make new friends; say no
        politely; apologize; move to another city; adopt a cat; clean windows; cook for ten guests; make ice cream;
        repair a chair; store potatoes; choose a good melon; make coffee without a machine; learn the alphabet of
        another language; debug a program; choose a strong password; write a good email; run a meeting; teach a child
        to read; ride a horse; identify birds; read a map; stay warm in winter; keep cool in summer; make a kite;
        prune a rose; cut onions without crying; get rid of ants; descale a kettle; sell old clothes; rent a flat;
        learn to juggle; write a short story; count to ten in Japanese; make a simple website; install Python"""),
    "who": _words("""a student; a retired teacher; a beginner; a nurse who works nights; a father of three; a busy
        programmer; a farmer; a musician; a taxi driver; a teenager; a cook; someone with little money; a shop owner;
        a tourist; a scientist; a gardener; a new parent; an artist; a carpenter; a pilot"""),
    "time": _words("""ten minutes; half an hour; one day; a weekend; one week; a month; an evening"""),
    "country": _words("""France; Italy; Japan; Brazil; Kenya; Norway; Canada; Egypt; India; Peru; Spain; Greece;
        Poland; Vietnam; Morocco; Finland; Chile; Turkey; Portugal; Austria; Ireland; Thailand; Mexico; Cuba; Iceland;
        Hungary; Nepal; Ghana; Sweden; Argentina; Indonesia; Ethiopia; Denmark; Colombia; Switzerland; South Korea"""),
    "month": _words(
        """January; February; March; April; May; June; July; August; September; October; November; December"""
    ),
    "number": _words("""12; 15; 17; 18; 20; 24; 25; 30; 32; 36; 40; 45; 48; 50; 64; 75; 80; 96; 100; 125"""),
    "few": _words("""two; three; four; five; six; seven; eight; nine"""),
    "hour": _words("""6:15; 7:30; 8:00; 9:45; 10:20; 11:05; 12:40; 14:10; 15:55; 17:25; 18:50; 20:35"""),
    "thing": _words("""book; lamp; chair; pencil; umbrella; teapot; blanket; hammer; mirror; candle; basket; bottle;
        ladder; pillow; bucket; notebook; spoon; jacket; rope; clock; kettle; backpack; guitar; stamp; carpet"""),
    "claim": _words("""bats are blind; the Great Wall of China can be seen from the moon; we use only a tenth of our
        brain; lightning never strikes twice in the same place; goldfish have a short memory; bulls hate red; sugar
        makes children wild; cold weather causes colds; bananas grow on trees; a penny falling from a tower can kill;
        cracking your fingers is bad for you; water drains the other way in the south; spinach has a lot of iron;
        camels store water in their humps; the sun is yellow; glass is a liquid; dogs see only black and white;
        humans have five senses; hair grows faster after shaving; carrots are good for the eyes"""),
    "purpose": _words("""a small flat; a long trip; a beginner; a rainy day; a family with children; a tight budget;
        someone who works at night; a healthy breakfast; learning at home; a quiet evening; a hot climate; a gift"""),
    "option": _words("""a bicycle; a car; a cat; a dog; tea; coffee; a book; a film; a laptop; a tablet; the train;
        a plane; bread; oatmeal; a garden; a balcony; the mountains; the beach; running; swimming; cooking; eating out;
        a diary; a blog; board games; card games; a violin; a piano"""),
    "word": _words("""brave; fragile; ancient; generous; stubborn; gloomy; swift; humble; curious; silent; bitter;
        gentle; vivid; reliable; awkward; cheerful; hollow; precise; eager; clumsy; scarce; bold; tender; dull; fierce;
        obvious; patient; rough; sincere; timid; vast; weary; zealous; narrow; modest; loyal; jealous; idle; harsh;
        grateful; faint; elegant; dizzy; calm; bright"""),
    "animal_question": _words("""is special; should a child know; is surprising; do people believe; is dangerous;
        would a scientist like to know; can you tell me; is there to learn"""),
    "animal": _words("""fox; whale; bee; camel; octopus; penguin; owl; elephant; hedgehog; salmon; spider; wolf; bat;
        kangaroo; crow; dolphin; ant; tiger; snail; eagle; beaver; frog; horse; turtle; parrot; giraffe; seal; lizard"""),
    "list_of": _words("""animals that live in the desert; things to do on a rainy day; healthy snacks; words that rhyme
        with "light"; musical instruments; jobs that need good maths; ways to save energy; famous inventions; board
        games; things you find in a kitchen; trees; reasons to read; questions for a first meeting; books for children;
        kinds of bread; sports without a ball; small acts of kindness; uses for an old newspaper; cities by the sea;
        things that are blue; vegetables that grow in winter; good habits; programming languages; parts of a computer;
        materials to build a house from; ideas for a school project; things to take on a hike; rules for a library;
        birds; ways to say thank you; tools; topics for an essay; vegetarian dinners; things that need no electricity"""),
    "feeling": _words("""I feel tired today.; I am bored.; I had a bad day at work.; I am nervous about tomorrow.;
        I miss my best friend.; I cannot decide what to cook.; I forgot an important birthday.; I am proud of my
        garden.; I slept badly.; My neighbour is too loud.; I lost my keys again.; I want to change my job.; It has
        been raining for a week.; I argued with my sister.; I have too much to do.; I moved to a new town.; My plants
        keep dying.; I failed an exam.; I spend too much time on my phone.; I have nobody to play chess with.; I broke
        my favourite cup.; My computer is slow.; I have a day off.; I cannot concentrate.; I got a new job."""),
    "occasion": _words("""a birthday party; a picnic; a school fair; a film evening; a wedding; a farewell party; a book
        club; a family weekend; a housewarming; a class trip; a garden party; a charity run; a cooking evening; a
        science day; a reunion; a concert; a quiz night; a flea market; a winter walk; an art exhibition"""),
    "message": _words("""I will be half an hour late; the meeting has moved to Friday; I cannot come to dinner; the
        parcel has arrived; I need the report by noon; the heating is broken; I would like to borrow a ladder; the
        concert is cancelled; I found a lost scarf; my flight is delayed; I am sorry about yesterday; we won the match;
        the library book is due; I want to order 20 chairs; the door was left open; I would like a day off next week;
        the invoice contains a mistake; I am looking for a tennis partner; the dog has eaten the cake"""),
    "a_thing": _words("""a warm scarf; help with the move; a book about birds; a lovely dinner; flowers; a lift to the
        station; good advice; a ticket to the opera; homemade jam; looking after the cat; a new bicycle; a fair
        review; a box of chocolates; a painting; a long letter"""),
    "like": _words("""maps; cooking; old films; numbers; trees; puzzles; singing; the sea; history; wood; trains;
        colours; computers; long walks; drawing; birds; stories; dancing; stars; bread; languages; machines"""),
    "business": _words("""a bakery; a bicycle shop; a bookshop for children; a flower shop; a repair café; a small
        hotel; a tea house; a music school; a shop for used clothes; an app for hikers; a food truck; a toy factory;
        a barber shop; a farm with goats; a game about trains; a podcast about bridges; a robot that waters plants"""),
    "town": _words("""Arlen; Brookmill; Castel; Dunmore; Eastport; Fenwick; Grafton; Holm; Ivenna; Juniper Bay;
        Kestrel; Lindau; Marlow; Norden; Oakridge; Port Lucas; Quill; Ravenna; Stonefield; Tarn"""),
    "tone": _words("""shorter; more formal; friendlier; easier to read; more exciting; suitable for a child; funnier;
        more polite; suitable for a newspaper; a letter to a friend"""),
    "passage_question": _words("""What is it mainly about?; What happened?; Who is mentioned?; Where does it happen?;
        What will probably happen next?; Is the text happy or sad?; Which numbers does it mention?;
        Why might this be important?; Which word is the most important one?"""),
    "passage": _texts("""$person_passage
----
$person_passage $town_passage
----
$town_passage
----
$fact_passage
----
$town_passage $person_passage
----
$fact_passage $fact_passage2"""),
    "person_passage": _texts("""$name works in a small shop that sells $plural. Every morning she opens the door at $hour and sweeps the floor. Last week a customer bought $few $plural at once.
----
When $name was a child, he wanted to build $plural. Today he teaches at a school, and his pupils have built more than $number of them.
----
$name wakes up at $hour, makes tea and walks to the harbour. On the way she counts the $plural. Yesterday there were $number, and today there are $number2.
----
$name has written a book about $topic. It took him $few years. The first chapter explains why $topic is more interesting than most people think.
----
For $few months $name saved money for a trip to $country. In $month the day finally came, but the train was late and the suitcase was still at home.
----
$name bought a $thing at the market for $number euros. At home she noticed that it was broken, so she went back and asked for her money.
----
On Monday $name lost a $thing. On Tuesday a neighbour found it behind the house, next to $few old $plural. $name was so happy that he invited the whole street for dinner.
----
$name plays the violin in an orchestra. In $month the orchestra travels to $country, where it will give $few concerts. Tickets cost $number euros."""),
    "town_passage": _texts("""The town of $town has decided to plant $number new trees along the main street. The mayor said that the work will begin in $month and take $few weeks.
----
The library of $town stays open until ten in the evening from $month on. Visitors may borrow up to $few books, and children may also borrow $plural.
----
A storm passed over $town on Sunday night. The wind broke $few windows of the school, but nobody was hurt. Classes will start again on Wednesday.
----
The old bridge of $town is closed for repairs. Drivers have to use the northern road, which takes $number minutes longer. The bridge will open again in $month.
----
The museum of $town shows an exhibition about $topic. It has $number objects, and the oldest of them comes from $country.
----
Since $month the buses of $town are free of charge. The number of passengers has grown by $number percent, and the car parks are emptier than before.
----
Every year in $month, people from $town and the villages around it meet for a race. This year $number runners took part, and the oldest of them was $number2 years old."""),
    "fact_passage": _texts("""Honey keeps for a very long time because it holds little water and is slightly sour. Bacteria cannot grow in it.
----
Owls can turn their heads very far because their necks have twice as many bones as ours. Their eyes cannot move, so they have to turn the whole head.
----
A bicycle is one of the most efficient ways to travel. A rider needs about a fifth of the energy that a walker needs for the same distance.
----
The first clocks had no hands. They rang a bell at every hour, and people in the fields listened to it.
----
Trees in a city cool the air, because water evaporates from their leaves. A street with trees can be several degrees cooler than one without.
----
Paper was once made of old cloth. When more and more books were printed, cloth became scarce, and people began to make paper from wood.
----
Salt was so valuable in the past that it was used as money in some places. It kept meat and fish from spoiling long before there were refrigerators.
----
Whales sing to each other over great distances. In cold, deep water the sound travels for hundreds of kilometres.
----
The potato came to Europe from South America. At first people grew it for its flowers, and only later did they eat it.
----
Sleep helps the brain to keep what it has learned. Pupils who sleep well before an exam remember more than those who study all night."""),
    "plural": _words("""clocks; kites; lamps; boats; hats; baskets; bicycles; bells; toys; maps; violins; teapots;
        candles; gloves; stamps; puppets; chairs; lanterns; umbrellas; flutes"""),
    "misspelt": _texts("""$name went to the markt and bougth $few aples. On the way home it startet to rain, and she had no umbrela.
----
The train from $town was late agian. The pasengers waited for $number minuts on the cold platfrom.
----
I am writting to you becuase my $thing is brocken. Please tell me wich parts I have to ordr.
----
Last sumer we drove to $country with $few freinds. The wether was beatiful and the food was excelent.
----
Our school wil have a new libary in $month. It has $number shelfs and a quite room for reading.
----
$name is lerning to play the gitar. He practises evry day, exept on Sundays, and his nieghbours are very pacient."""),
    "function": _words("""adds all even numbers of a list; reverses a string; checks whether a word is a palindrome;
        counts the vowels of a text; finds the largest number of a list; returns the factorial of a number; checks
        whether a number is prime; converts degrees Celsius to Fahrenheit; removes duplicates from a list and keeps
        the order; merges two sorted lists; counts how often each word occurs; returns the n-th Fibonacci number;
        flattens a list of lists; sorts a list of tuples by the second entry; computes the average of a list; finds
        the longest word of a sentence; reads a file and counts its lines; writes a list to a text file; turns a
        dictionary into a list of pairs; swaps keys and values of a dictionary; computes the greatest common divisor;
        rotates a list by k places; checks whether two words are anagrams; converts a number to binary; sums the digits
        of a number; finds the second largest number; prints a multiplication table; splits a list into chunks;
        capitalizes each word; finds common elements of two lists; computes the distance between two points; counts
        down from ten; returns all divisors of a number; checks whether brackets are balanced; finds the index of an
        element by binary search; computes compound interest; picks a random element of a list; validates an email
        address; removes all spaces of a string; transposes a matrix; multiplies two matrices; computes the median;
        finds the mode of a list; generates a random password; rolls two dice; converts minutes to hours and minutes;
        returns the days of a month; tells whether a year is a leap year; encodes a text with a Caesar cipher; counts
        the characters of a string; filters out negative numbers; joins a list of words with commas; squares each
        number of a list; checks whether a list is sorted; sorts a list by bubble sort; implements a stack; implements
        a queue; measures how long another function takes; retries another function three times; parses a date;
        draws a triangle of stars; guesses a number with the user; computes the area of a circle; groups words by
        their first letter; finds the first character that does not repeat; replaces tabs by spaces; compares two
        dictionaries; returns the last n lines of a file; converts Roman numerals to numbers; clamps a number between
        two bounds; finds all pairs of numbers that add up to a target"""),
    "code_wish": _words("""Add a docstring.; Use type hints.; Do not use any library.; Make it as short as you can.;
        Handle an empty input.; Add comments.; Raise a ValueError for wrong input.; Use a loop.; Use recursion.;
        Use a list comprehension.; Also write a small test.; Return the result and do not print it."""),
    "identifier": _words(
        """solve; compute; helper; my_function; process; run; transform; calculate; find_it; answer"""
    ),
    "code_edit": _words("""Add a docstring to this function.; Add type hints to this code.; Rename the function to
        $identifier.; Add a comment to each line.; Rename the variable result to $variable.; Find the mistake in this
        code, if there is one.; Make this code shorter.; Print the result before it is returned.; Raise a ValueError if
        the input is empty.; Add a test for this function.; Turn this function into a method of a class.; Add a main
        block that calls this function.; Make this code easier to read.; Use a list comprehension where it is
        possible.; Add a parameter verbose with the default False."""),
    "code_change": _words("""a docstring; type hints; the function renamed to $identifier; the variable result renamed to
        $variable; one comment per line; better names; a check for empty input; a print statement at the start"""),
    "variable": _words("""output; total; answer; found; collected; outcome; final; value"""),
    "snippet": _texts("""def total_price(items, tax):
    result = 0
    for item in items:
        result += item["price"] * item["count"]
    return result * (1 + tax)
----
def longest(words):
    result = ""
    for word in words:
        if len(word) > len(result):
            result = word
    return result
----
def count_letters(text):
    result = {}
    for letter in text.lower():
        if letter.isalpha():
            result[letter] = result.get(letter, 0) + 1
    return result
----
def mean(numbers):
    result = sum(numbers) / len(numbers)
    return result
----
def read_names(path):
    result = []
    with open(path) as file:
        for line in file:
            name = line.strip()
            if name:
                result.append(name)
    return result
----
def is_prime(n):
    if n < 2:
        return False
    for i in range(2, int(n ** 0.5) + 1):
        if n % i == 0:
            return False
    return True
----
def fibonacci(n):
    result = [0, 1]
    while len(result) < n:
        result.append(result[-1] + result[-2])
    return result[:n]
----
def merge(left, right):
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]
----
def find(items, target):
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == target:
            return middle
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1
----
def grade(points):
    if points >= 90:
        result = "A"
    elif points >= 75:
        result = "B"
    elif points >= 60:
        result = "C"
    else:
        result = "F"
    return result
----
def unique(items):
    seen = set()
    result = []
    for item in items:
        if item not in seen:
            seen.add(item)
            result.append(item)
    return result
----
def to_celsius(values):
    result = []
    for value in values:
        result.append(round((value - 32) * 5 / 9, 1))
    return result
----
def invert(table):
    result = {}
    for key, value in table.items():
        result.setdefault(value, []).append(key)
    return result
----
class Counter:
    def __init__(self):
        self.count = 0

    def add(self, amount=1):
        self.count += amount

    def reset(self):
        self.count = 0
----
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
----
def chunks(items, size):
    result = []
    for start in range(0, len(items), size):
        result.append(items[start:start + size])
    return result
----
def word_count(text):
    result = {}
    for word in text.split():
        word = word.strip(".,!?").lower()
        result[word] = result.get(word, 0) + 1
    return result
----
def power(base, exponent):
    result = 1
    for _ in range(exponent):
        result *= base
    return result
----
def parse_time(text):
    hours, minutes = text.split(":")
    result = int(hours) * 60 + int(minutes)
    return result
----
def transpose(matrix):
    result = []
    for column in range(len(matrix[0])):
        result.append([row[column] for row in matrix])
    return result
----
def shopping_list(names):
    result = "To buy:"
    for number, name in enumerate(names, start=1):
        result += f"\\n{number}. {name}"
    return result
----
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value
----
def caesar(text, shift):
    result = ""
    for letter in text:
        if letter.islower():
            result += chr((ord(letter) - 97 + shift) % 26 + 97)
        else:
            result += letter
    return result
----
def distance(a, b):
    result = 0
    for x, y in zip(a, b):
        result += (x - y) ** 2
    return result ** 0.5"""),
}
