"""Sentences on which the scales of int8 are found when no texts of the user's own are given."""

SENTENCES = """
The film starts slowly, but the last half hour is among the best I have seen this year.
Worst purchase of my life: it broke after two days and nobody answers my emails.
Please reset my password, I have been locked out of my account since Monday.
Shares of the carmaker fell 4.2% after it cut its forecast for the third quarter.
What time does the museum open on Sundays?
Great service, friendly staff, and the soup was hot. We will be back!
I never said that she took the money.
The committee will meet again in March to vote on the revised budget.
lol that goal was unreal, can't believe he scored from there
The patient reported mild pain in the left knee after running.
How do I cancel my subscription before the free trial ends?
It is neither funny nor sad, merely long.
Congratulations! You have won a prize. Click the link below to claim it now.
Water boils at a lower temperature at high altitude because the air pressure is lower.
My order #48213 arrived without the charger; could you send one to the same address?
The second season improves on the first in almost every way.
He closed the door, sat down, and read the letter twice.
Scientists have found traces of an ancient river beneath the ice.
Not bad.
The battery lasts a day and a half if you keep the screen dim.
Two people were injured when a tram left its tracks near the central station.
Why would anyone pay full price for this?
The function returns a list of names, sorted alphabetically.
She has a gift for making complicated ideas sound simple.
Turn left at the bakery, then walk three hundred metres to the bridge.
The plot makes no sense, the acting is wooden, and the music is far too loud.
Our flight was delayed by six hours and we missed the connection to Lisbon.
Under the agreement, either party may end the contract with ninety days' notice.
ok thanks
The recipe needs four eggs, 200 g of sugar and the juice of one lemon.
He apologized for the error and promised that it would not happen again.
I would not recommend this hotel to anyone who values sleep.
The striker missed the first two matches of the season with a broken toe.
Does this jacket run small? I usually wear a medium.
Critics praised the novel for its humour; readers loved its ending.
The new law limits how long companies may keep personal data.
A dull, predictable thriller that wastes its excellent cast.
Can somebody explain the difference between a virus and a bacterium?
The company was founded in 1987 by two brothers from a small town in Ohio.
I ordered the blue one and received green. Still, the quality is fine.
Heavy rain is expected in the north, with sunny spells elsewhere.
The lecture was so boring that half of the students left before the break.
What a wonderful surprise!
The processor supports up to 64 gigabytes of memory and two external displays.
You people are useless, fix your website.
The painting, thought lost for decades, was found in an attic in Lyon.
It was good until the update; now it crashes whenever I open a photo.
The bank raised interest rates for the third time in as many months.
Her performance alone is worth the price of the ticket.
Three of the four suspects have denied the charges.
My card was charged twice for the same purchase, please refund one of the payments.
The bridge was built by hand between 1902 and 1907, and it still carries trains today.
Is it safe to take this medicine with food?
Surprisingly moving, and beautifully shot on a tiny budget.
The train to Geneva leaves from platform nine at 14:32.
I have mixed feelings about it: the camera is superb, the software is a mess.
The government denied that any decision had been made.
Just finished my first marathon, legs are gone but so happy!!
This lens is sharp in the centre and soft at the edges.
Nobody expected the smaller team to win, least of all their own coach.
The error appears only when the file is empty.
They moved to the coast because the air in the city made the children ill.
If you like slow, quiet films about families, you will love this one.
The second paragraph repeats the first in longer words, and the third contradicts both of them without adding a \
single fact, which is a pity, because the question that the author asks at the start is a good one.
""".strip().splitlines()

PAIRS = list(zip(SENTENCES[::4], SENTENCES[1::4], strict=True))
